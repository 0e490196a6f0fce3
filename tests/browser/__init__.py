"""Rules of the page that only a browser can check."""
