"""Proxies: the bank of learnable vectors that stand for classes."""

from nearkin.proxies.bank import ProxyBank

__all__ = ["ProxyBank"]
