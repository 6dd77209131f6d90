"""What people see of cards, plans, ledgers and mechanisms.

``*_rows`` modules describe them as rows of text; ``terminal`` and ``markdown`` render rows. A new
medium needs a renderer and no new description.
"""
