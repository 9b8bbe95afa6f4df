"""The release before this one beside it on one Redis, while hosts go from one to the other and everything breaks."""
