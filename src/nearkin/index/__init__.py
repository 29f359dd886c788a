"""Search: an index of images' vectors, which finds images by their appearance."""

from nearkin.index.index import Index, Status
from nearkin.index.search import Classified, Hit

__all__ = ["Classified", "Hit", "Index", "Status"]
