"""Many turns and sessions at once: submitting, awaiting, following, listing, requeueing and scheduling them."""
