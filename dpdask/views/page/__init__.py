"""A published release as one self-contained HTML page."""

from dpdask.views.page.html import release_page

__all__ = ["release_page"]
