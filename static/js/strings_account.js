// The English words of the account's page: password, second factor, sessions, tokens. All others are in strings.js.

export const account = {
  title: "Account",
  signedInAs: (user, role) => `Logged in as ${user} (${role})`,
  password: "Password",
  passwordNote: "At least 12 characters. Changing it ends your other sessions.",
  externalNote: "Your password is your identity provider's; change it there.",
  current: "Current password",
  fresh: "New password",
  again: "New password again",
  change: "Change password",
  changed: "The password is changed",
  changedNote: "Your other sessions have ended.",
  different: "The two new passwords differ.",
  oneTime: "This password was made for you. Choose one of your own, of at least 12 characters.",
  wrong: "The current password is wrong.",
  failed: "That did not work",
};

/** Before what decides about logins and rights. */
export const confirm = {
  title: "Is it you?",
  note: "This decides who gets in. Your password is asked for again when that was longer than 10 minutes ago.",
  password: "Your password",
  code: "Code",
  codeHint: "What your app shows now, or one of your recovery codes.",
  submit: "Go on",
  noPassword: "Enter your password.",
  noCode: "Enter the code.",
  wrong: "The password is wrong.",
  notDone: "Nothing was done: you did not show who you are.",
  providerNote: "This decides who gets in. Log in with your organisation once more; then you come back to this page.",
  provider: "Log in again",
};

export const factor = {
  title: "Second factor",
  note: "An app on your phone shows a code that is asked for after your password. Programs with a token are not asked.",
  required: "Everybody has to have one here. Set yours up to go on: an app on your phone shows a code that is asked for after your password.",
  setUp: "Set up",
  state: (since, left) => `On since ${since}. ${left === 1 ? "1 recovery code is" : `${left} recovery codes are`} left.`,
  newCodes: "New recovery codes",
  remove: "Remove",
  setUpTitle: "Set up a second factor",
  scan: "Scan this with an app for one-time codes, then enter the code that it shows. Your other sessions end.",
  picture: "QR code with the secret for the app",
  byHand: "Or type the secret into the app",
  code: "Code that the app shows",
  codeHint: "6 digits, new every 30 seconds.",
  turnOn: "Turn on",
  noCode: "Enter the code that the app shows.",
  codes: "Recovery codes",
  once: "Each lets you in once, in place of a code of the app. Keep them where your phone is not: they are not shown again.",
  newCodesTitle: "Make new recovery codes?",
  askNewCodes: "Those that you have now are good no more.",
  removeTitle: "Remove the second factor?",
  askRemove: "Then your password alone lets anybody in.",
};

export const quotas = {
  title: "What you have",
  note: "An admin sets the limits. Memory, disk and processors are the sums of your workspaces' limits: what they may come to use. A workspace without a limit counts for 10 GiB of disk and 2 processors.",
  adminNote: "Admins have no limits of their own. Memory, disk and processors are the sums of workspaces' limits: what they may come to use. A workspace without a limit counts for 10 GiB of disk and 2 processors.",
  all: "All users together",
  names: { workspaces: "Workspaces", memory: "Memory", disk: "Disk", cpus: "Processors" },
  of: (use, limit) => `${use} of ${limit}`,
  unlimited: (use) => `${use}, no limit`,
  short: { workspaces: (figure) => `${figure} workspaces`, memory: (figure) => `${figure} of memory`, disk: (figure) => `${figure} of disk`, cpus: (figure) => `${figure} processors` },
  line: (figures) => `You have ${figures}.`,
};

export const sessions = {
  title: "Sessions",
  note: "Browsers that are logged in as you. Ending one closes its pages and desktops within a second.",
  columns: ["Browser", "Address", "Logged in", "Active", ""],
  thisOne: "This browser",
  unknown: "Unknown browser",
  end: "End",
  endLabel: (agent) => `End the session of ${agent}`,
  endOthers: "End all others",
};

export const tokens = {
  title: "API tokens",
  note: "For programs. A token has the scopes you give it and never more rights than you.",
  columns: ["Name", "Scopes", "Made", "Expires", "Last used", ""],
  none: "No tokens yet.",
  create: "New token",
  name: "Name",
  nameHint: "What it is for",
  scopes: "Scopes",
  scopeNotes: {
    read: "list and look",
    control: "drive desktops, share them",
    fork: "launch, fork, discard",
    admin: "users, images, everything",
  },
  expires: "Expires",
  choices: [[7, "7 days"], [30, "30 days"], [365, "1 year"], [0, "Never"]],
  once: "Copy it now: it is not shown again.",
  revoke: "Revoke",
  revokeLabel: (name, id) => `Revoke ${name}, ${id}`,
  noName: "Give the token a name.",
  noScope: "Choose at least one scope.",
  never: "Never",
  notUsed: "Never",
};
