"""What turns may use: prices of models, what a turn has used so far, and when that is enough."""
