"""What a turn does about trouble with its model service: time-outs, further tries, other models, rate limits."""
