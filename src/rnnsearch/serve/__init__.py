"""The server: models over HTTP, for LibreTranslate's clients and for the page (`rnnsearch serve`)."""
