"""Public corpora: the catalogue, downloads and the Bible."""
