"""Proxies: the bank of learnable vectors that stand for classes, and how images are chosen to start them."""

from nearkin.proxies.bank import ProxyBank
from nearkin.proxies.greedy_k_center import greedy_k_center

__all__ = ["ProxyBank", "greedy_k_center"]
