"""Samplers: which rows make a batch."""

from nearkin.samplers.balanced import BalancedSampler
from nearkin.samplers.random import RandomSampler
from nearkin.samplers.sampler import BatchSampler

__all__ = ["BalancedSampler", "BatchSampler", "RandomSampler"]
