"""Translation in a browser: the module that others can embed (`module/`), the off-line page around it (`page/`, over
the page of `rnnsearch serve`), and what writes both."""
