"""The transitions of events sent to turns, as plain Python."""

from __future__ import annotations

from typing import Any

from antiphon_worker.local.moves import ENDED, KEEP_EVENT_MS, Answer, Moves
from antiphon_worker.local.records import KeptEvent, Turn, event_of


class EventTransitions(Moves):
    """Events that turns wait for: they are kept for a day, and received once by each waiting call."""

    def send(self, name: str, tenant: str, event_id: str, json: bytes, most: int, batch: int) -> Answer:
        """Send an event to the turns that wait for it, and keep it for later ones."""
        event, now = event_of(name, tenant), self.clock()
        kept = self.events.get(event, {}).get(event_id)
        if kept is None or kept.at <= now - KEEP_EVENT_MS:
            self._forget_events(tenant, now, most - 1)
            self.event_position += 1
            kept = KeptEvent(self.event_position, now, tenant, json)
            self.events.setdefault(event, {})[event_id] = kept
        for turn in self._waiting_for(event):
            received = self._receive(turn, now)
            kept.turns += event_id in received
            if received and turn.decided:
                self._resume(turn, now)
        return [b"SENT", kept.turns, 0]

    def _waiting_for(self, event: str) -> list[Turn]:
        """Return the suspended turns that wait for an event, the longest waiting first."""
        waiting = [one for one in self.turns.values() if one.status == "suspended" and one.waits_for(event)]
        return sorted(waiting, key=lambda turn: (turn.record.number("suspended_at"), turn.id))

    def _forget_events(self, tenant: str, now: int, most: int) -> None:
        own = [
            (one.at, f"{event_id} {event}", event, event_id)
            for event, sent in self.events.items()
            for event_id, one in sent.items()
            if one.tenant == tenant
        ]
        own.sort()
        for place, (at, _, event, event_id) in enumerate(own):
            if at <= now - KEEP_EVENT_MS or place < len(own) - most:
                del self.events[event][event_id]

    def _receive(self, turn: Turn, now: int) -> list[str]:
        """Let the calls of a suspended turn receive sent events. Returns the ids of these events."""
        found: list[str] = []
        for call in turn.calls:
            if call.kind == "event" and not call.decision:
                event, after = (
                    turn.record.text(f"event:{call.place}"),
                    turn.record.number(f"after:{call.place}"),
                )
                first = self._first_event(event, after, now)
                if first is not None:
                    turn.receive(call, event, first[1], now)
                    more = {"event_name": event.partition(" ")[0], "event_id": first[0], "wait_id": call.id}
                    step = turn.record.number("step", 1) - 1
                    self._publish(turn.session, now, turn.event("event_received", step=step, **more))
                    found.append(first[0])
        return found

    def _first_event(self, event: str, after: int, now: int) -> tuple[str, KeptEvent] | None:
        known = self.events.get(event, {}).items()
        left = [one for one in known if one[1].position > after and one[1].at > now - KEEP_EVENT_MS]
        return min(left, key=lambda one: one[1].position, default=None)

    def forward(
        self, turn_id: str, run: int, child: str, after: int, upto: int, over: str, count: int, *rest: Any
    ) -> Answer:
        """Publish events of a child turn in the stream of its parent."""
        turn, calls = self.turns.get(turn_id), 2 * count
        if turn is None or turn.status in ENDED or turn.record.number("run") != run:
            return [b"OVER"]
        if "started_at" not in turn.record:  # it has not begun
            return [b"OVER"]
        place = turn.record.text(f"child:{child}") or "0"
        if place == "over":
            return [b"OVER"]
        if place != str(after):
            return [b"BEHIND", place.encode()]
        if bodies := rest[calls:]:
            self._publish(turn.session, self.clock(), *bodies)
        turn.record.put(**{f"child:{child}": "over" if over else upto})
        for asking, asks in zip(rest[:calls:2], rest[1:calls:2], strict=True):
            turn.record.put(**{f"asks:{asking}": asks})
        return [b"FORWARDED"]

    def forget_events(self, tenant: str, count: int) -> Answer:
        """Forget the events of a tenant."""
        count = sum(one.tenant == tenant for sent in self.events.values() for one in sent.values())
        self._forget_events(tenant, self.clock(), 0)
        return [b"FORGOTTEN", 0, count]
