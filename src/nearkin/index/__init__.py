"""Search: images put into a folder by their vectors, and found again by what they look like."""

from nearkin.index.index import Index
from nearkin.index.results import Classified, Hit, Status

__all__ = ["Classified", "Hit", "Index", "Status"]
