"""An index over HTTP: search, items, corrections and the gallery (extra ``serve``)."""
