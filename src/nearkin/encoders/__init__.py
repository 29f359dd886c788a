"""Encoders: backbone + pooling + projection + normalisation, and what each backbone's preprocessing is."""

from nearkin.encoders.architectures import backbones, families
from nearkin.encoders.backbone import Backbone
from nearkin.encoders.encoder import Encoder, build_encoder
from nearkin.encoders.preprocessing import Preprocessing
from nearkin.encoders.weights import WeightsReport, load_weights

__all__ = [
    "Backbone",
    "Encoder",
    "Preprocessing",
    "WeightsReport",
    "backbones",
    "build_encoder",
    "families",
    "load_weights",
]
