"""The monitor's pages for people: the fleet, a group, a host, a rank; made from one `View`. Pure.

Each page is a `Frame`: parts that are elements with an id, and items of a list that is too long to
send anew in every tick. The same frame is the HTML that a reader without JavaScript gets (`whole`),
and what an open page is told of the next tick (`news`: the parts and items that have changed).
Belongs here: what pages say and how it is put. Not here: routes and streams (app), the pages of
incidents (reports), colours (page.css).
"""

from monitor.pages.context import Context, Place
from monitor.pages.frame import Frame, news, state_of_all
from monitor.pages.make import make, whole

__all__ = ["Context", "Frame", "Place", "make", "news", "state_of_all", "whole"]
