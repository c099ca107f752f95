// Files that a desktop writes by itself, whoever works in it: logs, caches, sockets, the browser's profile. Among them what somebody did is not to be found.

const OWN = [
  /^\/var\/(log|tmp|cache)(\/|$)/,
  /^\/run(\/|$)/,
  /^\/tmp(\/(\.X11-unix|\.ICE-unix|\.X\d+-lock|dbus-[^/]*|ssh-[^/]*|\.org\.chromium\.[^/]*|selkies_web[^/]*)(\/.*)?)?$/,
  /^\/(home\/[^/]+|root)\/\.(cache|dbus|pki|config\/(chromium|pulse|dconf)|local\/share\/(gvfs-metadata|xfce4|applications))(\/|$)/,
  /^\/(home\/[^/]+|root)\/(\.xsession-errors[^/]*|\.ICEauthority|\.Xauthority|\.local\/share\/recently-used\.xbel[^/]*)$/,
];

/** Whether the file at `path` is one of those. */
export const isOwn = (path) => OWN.some((pattern) => pattern.test(path));
