// Figures as people read them.

/** 412 ms, 3.4 s, 2 min 5 s */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "";
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
}

/** 45 s, 12 min, 3 h 20 min, 2 d: how long something lasts or how long it is to go */
export function span(seconds) {
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  return `${Math.round(minutes / 1440)} d`;
}

/** just now, 4 min, 3 h, 2 d */
export function age(created, now = Date.now()) {
  const time = typeof created === "number" ? created * 1000 : Date.parse(created);
  if (!Number.isFinite(time)) return "";
  const minutes = Math.floor((now - time) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h`;
  return `${Math.floor(minutes / 1440)} d`;
}

/** As somebody set it: "20 GiB" without a decimal place that says nothing. */
export const setSize = (bytes) => size(bytes).replace(".0 ", " ");

/** 1.8 GiB */
export function size(bytes) {
  if (!Number.isFinite(bytes)) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}
