"""Recipes as package data; see `flashreinforce_molt.recipes`."""
