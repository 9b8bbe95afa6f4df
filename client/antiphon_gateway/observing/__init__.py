"""What a gateway lets an operator see, if asked: metrics and traces. None of it holds what users wrote."""
