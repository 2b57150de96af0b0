"""Learned heat diffusion on surfaces."""
