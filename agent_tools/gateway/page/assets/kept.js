// What survives a reload, for this tab: ids, choices and drafts. What was said stays at the gateway, behind its key.

const PREFIX = `agent_tools ${new URL(document.baseURI).pathname} `; // several gateways may share a host

export function kept(name, otherwise = null) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + name)) ?? otherwise;
  } catch {
    return otherwise; // the browser keeps nothing, or something else
  }
}

export function keep(name, value) {
  try {
    sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // full, or forbidden: the page works without
  }
}

/** Has a field keep what is typed into it; what was typed before the page was ready stays. */
export function keepField(field, name) {
  if (field.value) keep(name, field.value);
  else field.value = kept(name, "");
  field.addEventListener("input", () => keep(name, field.value));
}
