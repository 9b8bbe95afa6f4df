# client.py
from antiphon import Client

with Client("redis://localhost:6379/0") as client:
    turn = client.submit("user-123", "Where is order 7?", agent="support")
    for event in turn.stream():
        if event.type == "text_delta":
            print(event.text, end="", flush=True)
    print("\n", turn.result().usage)
