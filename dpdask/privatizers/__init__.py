"""Privatizers: bound a tile, put it on the grid, add exact noise."""
