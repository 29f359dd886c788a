"""Tables, figures and the HTML report of runs."""
