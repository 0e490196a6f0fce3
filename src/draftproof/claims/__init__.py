"""What arXiv 2601.11580 claims, judged on a run and on the paper's own figures.

``fixtures/claims.toml`` holds the claims; `predicates` says what each kind of claim means, over the `facts` that
`ofrun` takes from a run and `ofpaper` from the published figures.
"""
