/** Builds the page. What users and models wrote becomes text nodes and nothing else. */

export const byId = (id) => document.getElementById(id);

/** h("p", { class: "note", onclick: press }, "text", node): an element with attributes, listeners and children. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((one) => one !== undefined && one !== null && one !== false));
  return node;
}

/** Set the text of an element, if it is another one: a text that stays keeps its selection. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/**
 * Let `parent` have one child for each item, in their order. A child stays as long as its item does, and with it the
 * focus, the selection and what is open. `make(item)` returns an object with `node` and `update(item)`.
 */
export function arrange(parent, items, keyOf, make) {
  const before = (parent.views ??= new Map());
  const views = (parent.views = new Map());
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const view = before.get(key) ?? make(item);
    before.delete(key);
    views.set(key, view);
    view.update(item);
    if (view.node === place) place = place.nextSibling;
    else put(parent, view.node, place);
  }
  for (const view of before.values()) view.node.remove();
}

/** Put a child before another one. One that only moves keeps the focus, where the browser can do so. */
function put(parent, node, place) {
  if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, place);
  else parent.insertBefore(node, place);
}

/** Return a function that lets `draw` run once before the next frame, however often it is called. */
export function onFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** Tell users of screen readers what has happened. */
export function announce(text) {
  byId("announcer").textContent = "";
  requestAnimationFrame(() => { byId("announcer").textContent = text; });
}

/** Show a sentence until it is dismissed or some time has passed. */
export function notify(text, { wrong = true, seconds = 12 } = {}) {
  const close = h("button", { type: "button", class: "plain", "aria-label": "Dismiss", onclick: () => node.remove() }, "×");
  const node = h("div", { class: wrong ? "notice wrong" : "notice" }, h("p", {}, text), close);
  const notices = byId("notices");
  notices.append(node);
  while (notices.children.length > 3) notices.firstChild.remove();
  setTimeout(() => node.remove(), seconds * 1000);
}

/** Run what a button asks for. The button cannot be pressed again meanwhile; a problem is shown. */
export async function press(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return undefined;
  button.setAttribute("aria-disabled", "true");
  try {
    return await work();
  } catch (problem) {
    notify(problem.message);
    return undefined;
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

/** Let a button do some work, as `press` does it. */
export const onPress = (button, work) => button.addEventListener("click", () => press(button, work));

export function buttonFor(text, work, look = "small") {
  const button = h("button", { type: "button", class: look }, text);
  onPress(button, work);
  return button;
}

/** Let a form call `work` instead of being sent. */
export function onSubmit(form, work) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    work();
  });
}

/** A section with a title and a list, which may be within `whole`; a sentence takes its place while it is empty. */
export function panel(title, nothing, list = h("ul", {}), whole = list) {
  const none = h("p", { class: "faint", hidden: true }, nothing);
  const node = h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), whole, none);
  const update = (items, keyOf, make) => {
    arrange(list, items, keyOf, make);
    show(none, items.length === 0);
    show(whole, items.length > 0);
  };
  return { node, update };
}

/** The address at which this page shows a session. */
export const addressOf = (session) => `#/sessions/${encodeURIComponent(session)}`;

/** Ask whether to go on. Escape, and the button that has the focus at first, are no. */
export function confirmed(title, text, yes) {
  const no = h("button", { type: "button", autofocus: true }, "Cancel");
  const go = h("button", { class: "main" }, yes);
  const form = h("form", {}, h("h2", { id: "confirm-title" }, title), h("p", { id: "confirm-text" }, text), h("div", { class: "row end" }, no, go));
  const dialog = h("dialog", { "aria-labelledby": "confirm-title", "aria-describedby": "confirm-text" }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    no.addEventListener("click", () => dialog.close());
    onSubmit(form, () => dialog.close("yes"));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
  });
}

/**
 * What a panel needs is read when it opens: `read` imports a module of panels/, once; where it failed, the next call tries again.
 * Each module of panels/ has a line with its bound in tests/gateway/test_live.py.
 */
export function onDemand(read) {
  let found = null;
  return () => (found ??= read().catch((problem) => { found = null; throw problem; }));
}

/** Read the styles of a panel, before it is shown. */
export function styled(url) {
  const link = h("link", { rel: "stylesheet", href: url });
  return new Promise((resolve, reject) => {
    link.addEventListener("load", resolve);
    link.addEventListener("error", () => { link.remove(); reject(new Error("The styles of a panel could not be read.")); });
    document.head.append(link);
  });
}
