"""Puts the control process together: what it serves to browsers and what to the stream process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiohttp import web

from engine.answers import ended_lines
from engine.config import Config
from engine.network.fdclient import FdClient
from portal import accounts, audit, logs, oidc, security
from portal.access import Access
from portal.api import control as api_control
from portal.api.accessibility import Accessibility
from portal.api.account import Account
from portal.api.actions import Actions
from portal.api.administration import Administration
from portal.api.events import Events
from portal.api.executions import Executions
from portal.api.changes import Changes
from portal.api.factor import Factor
from portal.api.files import Files
from portal.api.images import Images
from portal.api.logins import Logins
from portal.api.models import Models
from portal.api.oidc import Oidc
from portal.api.operations import Operations
from portal.api.ports import Ports
from portal.api.screens import Screens
from portal.api.shares import Shares
from portal.api.tokens import Tokens
from portal.api.users import Users
from portal.api.workspaces import Workspaces
from portal.builds import Builds
from portal.command_sockets import CommandSockets
from portal.control_sockets import ControlSockets
from portal.cua.computer_server import ComputerServer
from portal.cua.face import Cua
from portal.database import Database
from portal.e2b.face import E2b
from portal.e2b.metadata import Metadata
from portal.feed import Feed
from portal.forks import Forks
from portal.housekeeping import Housekeeping
from portal.identity import Identity
from portal.inside import Inside
from portal.leases import Leases
from portal.lifetimes import Lifetimes
from portal.live import Live
from portal.mcp.http import Mcp
from portal.metrics import Metrics
from portal.node import Node, Patience
from portal.once import Once
from portal.osworld.faces import Faces
from portal.osworld.routes import routes as osworld_routes
from portal.osworld.server import Ground, application
from portal.owners import Owners
from portal.pages import Pages
from portal.passwords import Passwords
from portal.places import Places
from portal.presence import Presence
from portal.principal import Role
from portal.private import Private
from portal.quotas import Quotas
from portal.rates import Rates
from portal.requests import watched
from portal.routes import LONGEST_BODY, Router
from portal.second_factors import SecondFactors
from portal.settings import Settings, SettingsStore
from portal.sessions import ABSOLUTE_SECONDS, IDLE_SECONDS, Session
from portal.terminal_sockets import TerminalSockets
from portal.tickets import Tickets
from portal.tracing import Tracing
from portal.viewers import Viewers



@dataclass(frozen=True)
class Options:
    """How long to wait for the engine, how long sessions live (seconds), the settings of a new database, and other
    tracing than the configuration's."""

    patience: Patience = field(default_factory=Patience)
    idle_seconds: float = IDLE_SECONDS
    absolute_seconds: float = ABSOLUTE_SECONDS
    settings: Settings = field(default_factory=Settings)
    tracing: Tracing | None = None


class Control:
    """Everything the control process holds. `open` before serving `public` and `private`, `close` after."""

    def __init__(self, config: Config, options: Options = Options()) -> None:
        places = self._places = Places(config)
        self._trail = audit.Trail(places.audit)
        self.database = Database(places.database)
        self.owners = Owners(self.database)
        self.access = Access(self.database, self.owners, options.idle_seconds, options.absolute_seconds)
        self.sessions = self.access.sessions
        self.tickets = Tickets()
        self.node = Node(config.socket, options.patience)
        self.feed = Feed(self.node)
        self.builds = Builds(self.node, self.feed, config.images)
        self.settings = SettingsStore(self.database, options.settings)
        self.identity = Identity(self.access.users, self.access.tokens, self.settings)
        self.second_factors = SecondFactors(self.database, places.factor_key)
        self.viewers = Viewers(self.feed, self._stranger)
        self.tracing = options.tracing or Tracing(config.otlp_endpoint)
        self._metrics = Metrics(self.feed, self.sessions, places.run)
        presence = Presence()
        self.leases = Leases(self.database, self.feed, self.sessions, presence)
        self.lifetimes = Lifetimes(self.database, self.feed, self.node, self.settings)
        self.quotas = Quotas(self.feed, self.owners, self.settings, self.access.users)
        self._metadata = Metadata(self.database)
        self._live = Live(self.feed, self.sessions, self.identity, self.owners, self.leases, presence)
        self._once = Once(self.database)
        self.forks = Forks(self.node, self.feed, self.owners, self.quotas, self.lifetimes)
        self._router = Router(self.identity, self.owners, self.leases, self.lifetimes, self._once)
        self._inside = Inside(self.node)
        rates = Rates()
        self._actions = Actions(self.node, self._router, rates)
        self.leases.changed, self.leases.ending = self._actions.release, self._actions.ending
        ground = Ground(self.node, self._inside, self._actions, self._router, self.owners, self.access.users, rates)
        self._faces = Faces(lambda lost: FdClient(config.fd_socket, lost), application(osworld_routes, ground))
        self._housekeeping = Housekeeping(self.feed, [self.owners, self.access.shares, self.leases, self.lifetimes, self._metadata, self._faces])
        self._executions = Executions(self._inside, self.access.endings, rates)
        self._events = Events(self.feed, self.owners, self.access.endings)
        self._mcp = Mcp(self.identity, places.control_socket)
        self._rates = rates
        computer = ComputerServer(self._actions, self.node, self._inside, self._router, rates)
        self._cua = Cua(computer, self.identity, self._router, self.access.endings, self.feed)
        terminals = TerminalSockets(self._inside, self.access.endings, self.identity, self._router)
        commands = CommandSockets(self._inside, self.access.endings, self.identity, self._router, rates)
        controls = ControlSockets(self._actions, self.node, self.feed, self.leases, self.access.endings, self.identity, self._router)
        self._sockets = (terminals, commands, controls)
        self.private = Private(self.access, self.owners, self.tickets, self.viewers).application()
        provider = oidc.settings(config)
        self._provider = oidc.Provider(provider) if provider is not None else None
        self.public = self._public(Pages(self._is_admin, by_provider=provider is not None))

    def _public(self, pages: Pages) -> web.Application:
        guards = [watched(logs.follow, self.tracing.follow, self._metrics.count), ended_lines, pages.html_errors, security.errors, security.canonical_host, security.same_origin]
        app = web.Application(middlewares=guards, client_max_size=LONGEST_BODY)
        app[security.SESSIONS] = self.sessions
        passwords = Passwords(self.database)
        logins = Logins(self.database, self.access, passwords, self.second_factors, self.tickets)
        by_provider = Oidc(self._provider, self.access, logins)
        shares = Shares(self.access, self.node, self.tickets, self.viewers)
        files = Files(self._inside, self.identity, self._router)
        changes = Changes(self._inside, self.feed, self._router)
        workspaces = self._workspaces = Workspaces(self.node, self.feed, self.owners, self.tickets, self.quotas, self.forks, self.lifetimes)
        places = self._places
        administration = Administration(self.settings, self.quotas, self.feed, self.owners, self.viewers, places.run, places.audit)
        control = api_control.Control(self.leases, self.lifetimes)
        operations = Operations(self.database, self.feed, self._metrics)
        inside = [Ports(self._inside), files, changes, Screens(self.node), Accessibility(self.node), self._actions, Models(self._actions, self.node), self._executions, self._events, self._cua]
        parts = [logins, workspaces, control, Images(self.builds), administration, operations, *inside]
        account = Account(self.access, passwords, self.second_factors, self.settings, self.tickets)
        parts += [account, Factor(self.access, self.second_factors), Users(self.access, passwords, self.quotas), Tokens(self.access), shares]
        routes = self.routes = [route for part in parts for route in part.routes()]
        pages.describe(operations.describe(routes, [part.route() for part in self._sockets]))
        for part in (logins, by_provider, shares, operations, self._cua):
            app.add_routes(part.open_routes())
        for part in (pages, self._live, self._mcp, *self._sockets):
            app.add_routes(part.routes())
        app.add_routes(files.form_routes())
        app.add_routes(self._router.bind(routes))
        self._e2b = E2b(
            self.identity, places.sandbox_key, self.node, self._inside, self._router, owners=self.owners, lifetimes=self.lifetimes, workspaces=workspaces,
            forks=self.forks, once=self._once, actions=self._actions, rates=self._rates, metadata=self._metadata, endings=self.access.endings,
        )  # fmt: skip
        app.add_routes(self._e2b.routes())
        app.on_response_prepare.append(security.add_headers)
        app.on_response_prepare.append(logs.add_id)
        app.on_shutdown.append(self._close_pages)
        return app

    def _stranger(self, right: str, workspace: str) -> bool:
        """Whoever came by a share link, and in somebody's workspace anybody else: an admin. What nobody owns is all admins'."""
        session, owner = self.sessions.get(right), self.owners.of(workspace)
        if session is None:
            return right in self.access.shares.live()
        return owner is not None and session.user != owner

    def _is_admin(self, session: Session) -> bool:
        account = self.access.users.enabled(session.user)
        return account is not None and account.role is Role.ADMIN

    async def _close_pages(self, _: web.Application) -> None:
        closing = (self._live, self._mcp, *self._sockets, self._events, self._e2b, self._cua)
        await asyncio.gather(*(part.close() for part in closing))

    async def open(self) -> None:
        """Raises sqlite3.Error or OSError when the database cannot be used."""
        self._trail.open()
        await asyncio.to_thread(accounts.ready)
        await self.database.open()
        await self.second_factors.open()
        await self.owners.open()
        await self.access.open()
        await self.settings.open()
        await self.leases.open()
        await self.lifetimes.open()
        await self._e2b.open()
        if self._provider is not None:
            await self._provider.__aenter__()
        await self.node.__aenter__()
        self.feed.start()
        self._faces.start()
        self._housekeeping.start()
        self._metrics.start()

    def load_ahead(self) -> asyncio.Task[None]:
        """Load what takes long and may be asked for at any time, once everything else answers; nobody has to wait for it."""
        return self._mcp.load()

    async def close(self) -> None:
        await self._workspaces.close()
        await self._once.close()
        await self.builds.close()
        await self._metrics.close()
        await self._housekeeping.close()
        await self._faces.close()
        await self.leases.close()
        await self.lifetimes.close()
        await self.feed.close()
        await self.node.__aexit__(None, None, None)
        if self._provider is not None:
            await self._provider.__aexit__(None, None, None)
        await self.access.close()
        await self.database.close()
        await self.tracing.close()
        self._trail.close()
