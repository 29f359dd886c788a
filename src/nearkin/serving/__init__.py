"""An index over HTTP: search, items, corrections, the map and the gallery (extra ``serve``)."""
