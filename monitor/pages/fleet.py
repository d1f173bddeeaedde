"""The page of the whole fleet. Pure."""

from __future__ import annotations

from monitor.pages.actions import acts, switch
from monitor.pages.attention import attention
from monitor.pages.banners import banners
from monitor.pages.context import Context
from monitor.pages.frame import Frame, frame
from monitor.pages.grid import grid, items
from monitor.pages.lists import incidents, quarantine
from monitor.pages.policy import policy
from monitor.pages.pulse import condition, facts_of, figures, headline, legend, pulse
from monitor.pages.tree import el


def fleet_page(context: Context) -> Frame:
    """Is it training, who holds it up, what was done; then the rest."""
    seen = pulse(context)
    facts = facts_of(context, seen)
    return frame(
        str(facts["headline"]),
        (banners(context),),
        (
            el("div", el("h1", "Fleet"), headline(context, seen),
               condition(context, seen), figures(context, seen),
               id="pulse", class_="pulse"),
            attention(context),
            incidents(context),
            grid(context, legend(seen)),
            quarantine(context),
            acts(context, switch(context)),
            policy(context),
        ),
        items=items(context),
        facts=facts,
    )  # fmt: skip
