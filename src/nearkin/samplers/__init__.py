"""Samplers: which rows make a batch."""

from nearkin.samplers.balanced import BalancedSampler
from nearkin.samplers.class_representatives import ClassRepresentativeSampler
from nearkin.samplers.random import RandomSampler
from nearkin.samplers.sampler import BatchSampler

__all__ = ["BalancedSampler", "BatchSampler", "ClassRepresentativeSampler", "RandomSampler"]
