// The action of a page as a program would do it with the package `tclone` (docs/how-to/sdk.md). What its classes have no verb for goes by the client's
// `request`; what only a person may do by a login of its own, which the package, made for tokens, has not.

/** A Python literal of a JSON value; JSON's strings are Python's. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${literal(item)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** A path that is percent-encoded here: text, or the bytes of a name that is none. */
function pathLiteral(encoded) {
  try {
    return JSON.stringify(decodeURIComponent(encoded));
  } catch {
    const escaped = encoded.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
    return `b"${escaped.replaceAll(/%([0-9A-Fa-f]{2})/g, "\\x$1")}"`;
  }
}

const keywords = (values) => Object.entries(values).map(([name, value]) => `${name}=${literal(value)}`);
const told = (call) => [`print(${call})`];
const each = (one, call) => [`for ${one} in ${call}:`, `    print(${one})`];

/** One action of a desktop, by the verb of its name. */
const act = ({ action, ...rest }) => `desk.${action}(${keywords(rest).join(", ")})`;

/** What the request comes to with a workspace, by method and the path behind it. `[pattern, lines(action, found)]` */
const OF_A_WORKSPACE = [
  [/^GET $/, () => told("desk.refresh()")],
  [/^DELETE $/, () => ["desk.discard()"]],
  [/^POST \/fork$/, ({ body: { copies, ...rest } }) => each("branch", `desk.fork(${[copies, ...keywords(rest)].join(", ")})`)],
  [/^POST \/keepalive$/, () => ["desk.keep_alive()"]],
  [/^GET \/lease$/, () => told("desk.lease()")],
  [/^GET \/logs\?tail=(\d+)$/, (_, [lines]) => told(`desk.logs(${lines})`)],
  [/^GET \/screenshot\?format=png$/, ({ save }) => [`desk.screenshot().save(${JSON.stringify(save)})`]],
  [/^PUT \/file\?path=(.+)$/, ({ send }, [path]) => told(`desk.files.upload(${JSON.stringify(send)}, ${pathLiteral(path)})`)],
  [/^GET \/file\?path=(.+)$/, ({ save }, [path]) => [`desk.files.download(${pathLiteral(path)}, ${JSON.stringify(save)})`]],
  [/^GET \/files\?path=(.+)$/, (_, [path]) => each("entry", `desk.files.list(${pathLiteral(path)})`)],
  [/^GET \/diff\?base=([^&]+)(&own=1)?$/, (_, [base, own]) => each("change", `desk.files.diff(${JSON.stringify(base)}${own ? ", own=True" : ""})`)],
  [/^PUT \/clipboard$/, ({ body: { text } }) => [`desk.clipboard.set(${literal(text)})`]],
  [/^POST \/actions$/, ({ body: { actions } }) => actions.map(act)],
  [/^POST \/exec$/, ({ body: { argv } }) => told(`desk.exec(${literal(argv)}).text`)],
  [/^POST \/ports\/(\d+)$/, (_, [port]) => told(`desk.ports.publish(${port})`)],
];

const PREFIX = "/api/v1";
const WORKSPACES = `${PREFIX}/workspaces`;

function calls(action) {
  const { method, path, body } = action;
  if (method === "POST" && path === WORKSPACES) {
    const { image, ...rest } = body;
    return [`desk = client.run(${[literal(image), ...keywords(rest)].join(", ")})`, ...told("desk.id")];
  }
  const [, id, behind] = /^\/api\/v1\/workspaces\/([^/?]+)(.*)$/.exec(path) ?? [];
  for (const [pattern, lines] of id ? OF_A_WORKSPACE : []) {
    const found = pattern.exec(`${method} ${behind}`);
    if (found) return [`desk = client.workspace(${JSON.stringify(id)})`, ...lines(action, found.slice(1))];
  }
  return told(`client.request(${[method, path.slice(PREFIX.length)].map((text) => JSON.stringify(text)).join(", ")}${body === undefined ? "" : `, ${literal(body)}`})`);
}

/** By a login of a person's own, with what Python brings. */
function asPerson({ method, path, body }, origin) {
  const from = `"Origin": ${JSON.stringify(origin)}`;
  return [
    "import json, ssl, urllib.request",
    "",
    'tls = ssl.create_default_context(cafile="ca.pem")',
    "opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls), urllib.request.HTTPCookieProcessor())",
    "login = urllib.request.Request(",
    `    ${JSON.stringify(`${origin}/api/v1/login`)},`,
    `    headers={${from}, "Content-Type": "application/json"},`,
    '    data=open("login.json", "rb").read(),',
    ")",
    'key = json.load(opener.open(login))["key"]',
    "request = urllib.request.Request(",
    `    ${JSON.stringify(origin + path)},`,
    `    method=${JSON.stringify(method)},`,
    `    headers={${from}, "X-TClone-Key": key${body === undefined ? "" : ', "Content-Type": "application/json"'}},`,
    ...(body === undefined ? [] : [`    data=json.dumps(${literal(body)}).encode(),`]),
    ")",
    "with opener.open(request) as answer:",
    "    print(answer.read().decode())",
  ].join("\n");
}

export function python(action, origin = location.origin) {
  if (action.person) return asPerson(action, origin);
  const lines = calls(action).map((line) => `    ${line}`);
  return ["from tclone import Client", "", `with Client(${JSON.stringify(origin)}, ca="ca.pem") as client:`, ...lines].join("\n");
}
