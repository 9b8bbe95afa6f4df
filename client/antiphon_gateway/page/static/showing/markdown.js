/** Markdown as elements: no HTML, no pictures from elsewhere, and links to web and mail addresses only. */

import { h } from "./dom.js";

const FENCE = /^\s*(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^ {0,3}(?:[-*+]|(\d{1,9})[.)])(?:\s+|$)/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 6;
export const LONGEST = 20_000; // characters of a block with marks; a longer one is shown as it was written
const MARKS = /[\\`*_~[!<]|https?:\/\//g;
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/** The blocks of a text that begins at `from`: `{ kind, text, from }`, where the text is as it was written. */
export function blocksOf(text, from = 0) {
  const found = [];
  let block = null;
  let fence = "";
  let place = from;
  for (const line of text.split("\n")) {
    const marks = FENCE.exec(line)?.[1];
    if (fence) {
      if (marks && marks[0] === fence[0] && marks.length >= fence.length && line.trim() === marks) { fence = ""; block = null; }
      else block.lines.push(line);
    } else if (marks) {
      fence = marks;
      found.push((block = { kind: "code", lines: [], from: place }));
    } else if (continues(block, line)) {
      block.lines.push(line);
      if (block.lines.length === 2 && block.kind === "text" && block.lines[0].includes("|") && line.includes("-") && DIVIDER.test(line)) block.kind = "table";
    } else {
      block = null;
      const kind = kindOf(line);
      if (kind) found.push((block = { kind, lines: [line], from: place }));
    }
    place += line.length + 1;
  }
  return found.map(({ kind, lines, from: begin }) => ({ kind, text: lines.join("\n").replace(kind === "code" ? /^$/ : /\s+$/, ""), from: begin }));
}

function kindOf(line) {
  if (line.trim() === "") return null;
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  return QUOTE.test(line) ? "quote" : ITEM.test(line) ? "list" : "text";
}

/** Whether a line belongs to the block before it. Lists go on after empty lines, with items and what is indented. */
function continues(block, line) {
  if (!block || block.kind === "heading" || block.kind === "rule" || block.kind === "code") return false;
  const kind = kindOf(line);
  if (block.kind === "list") {
    const indented = /^(?: {2,}|\t)/.test(line);
    if (kind === "list" && !indented) return Boolean(ITEM.exec(line)[1]) === Boolean(ITEM.exec(block.lines[0])[1]);
    return kind === null || kind === "list" || indented || (kind === "text" && block.lines.at(-1).trim() !== "");
  }
  if (block.kind === "table") return kind !== null && line.includes("|");
  return kind === block.kind || (block.kind === "quote" && kind === "text");
}

/** The element of a block. `depth` counts the lists and quotations around it. */
export function nodeOf({ kind, text }, depth = 0) {
  if (kind === "code") return h("pre", { tabindex: "0" }, h("code", {}, text));
  if (text.length > LONGEST || depth > DEEPEST) return h("p", {}, text);
  switch (kind) {
    case "rule": return h("hr");
    case "heading": {
      const [, marks, title = ""] = HEADING.exec(text);
      return h("p", { class: `heading level-${marks.length}`, role: "heading", "aria-level": Math.min(6, marks.length + 2) }, inline(title.replace(/\s+#+\s*$/, "")));
    }
    case "quote": return h("blockquote", {}, all(text.split("\n").map((line) => line.replace(QUOTE, "")).join("\n"), depth + 1));
    case "list": return listOf(text, depth);
    case "table": return tableOf(text);
    default: return h("p", {}, inline(text));
  }
}

const all = (text, depth) => blocksOf(text).map((block) => nodeOf(block, depth));

function listOf(text, depth) {
  const items = [];
  const indent = /^ */.exec(text)[0].length;
  for (const line of text.split("\n")) {
    const found = ITEM.exec(line);
    if (found && !RULE.test(line) && (items.length === 0 || /^ */.exec(line)[0].length < indent + 2)) items.push({ width: found[0].length, lines: [line.slice(found[0].length)] });
    else items.at(-1).lines.push(line.replace(/\t/g, "    ").replace(new RegExp(`^ {0,${Math.max(2, items.at(-1).width)}}`), ""));
  }
  const start = ITEM.exec(text)[1];
  const nodes = items.map(({ lines }) => h("li", {}, tight(all(lines.join("\n"), depth + 1))));
  return start === undefined ? h("ul", {}, nodes) : h("ol", { start: Number(start) === 1 ? undefined : start }, nodes);
}

/** The content of an item: its first paragraph stands beside the mark. */
const tight = (nodes) => nodes.flatMap((node, place) => (place === 0 && node.tagName === "P" && !node.className ? [...node.childNodes] : [node]));

function tableOf(text) {
  const [head, divider, ...rows] = text.split("\n").map(cellsOf);
  const align = divider.map((cell) => (/^:-+:$/.test(cell) ? "middle" : /^-+:$/.test(cell) ? "end" : undefined));
  const row = (cells, tag) => h("tr", {}, head.map((_, place) => h(tag, { class: align[place], scope: tag === "th" ? "col" : undefined }, inline(cells[place] ?? ""))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, rows.map((cells) => row(cells, "td")))));
}

const cellsOf = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

const BOTH = "[^]{1,1000}?";
const SPANS = [
  [/\\([!-/:-@[-`{-~])/y, ([, mark]) => mark],
  [/(`{1,8})(?!`)([^]{1,1000}?)(?<!`)\1(?!`)/y, ([, , code]) => h("code", {}, code.replace(/^ (.*) $/s, "$1"))],
  [/(!?)\[([^[\]]{0,1000})\]\(\s*<?([^\s()<>]{1,2000})>?(?:\s+"[^"]{0,500}")?\s*\)/y, ([, picture, text, url], depth) => link(url, picture ? `Picture: ${text || url}` : text, depth)],
  [/<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y, ([, url]) => link(url, url, DEEPEST)],
  [/https?:\/\/[^\s<>"'`]{1,2000}/y, ([url], depth) => address(url, depth)],
  [new RegExp(`\\*\\*(?=\\S)(${BOTH})(?<=\\S)\\*\\*(?!\\*)`, "y"), ([, text], depth) => h("strong", {}, inline(text, depth + 1))],
  [new RegExp(`(?<![\\p{L}\\p{N}])__(?=\\S)(${BOTH})(?<=\\S)__(?![\\p{L}\\p{N}])`, "uy"), ([, text], depth) => h("strong", {}, inline(text, depth + 1))],
  [new RegExp(`\\*(?=[^\\s*])(${BOTH})(?<=[^\\s*])\\*(?!\\*)`, "y"), ([, text], depth) => h("em", {}, inline(text, depth + 1))],
  [new RegExp(`(?<![\\p{L}\\p{N}_])_(?=[^\\s_])(${BOTH})(?<=[^\\s_])_(?![\\p{L}\\p{N}_])`, "uy"), ([, text], depth) => h("em", {}, inline(text, depth + 1))],
  [new RegExp(`~~(?=\\S)(${BOTH})(?<=\\S)~~`, "y"), ([, text], depth) => h("del", {}, inline(text, depth + 1))],
];

/** The nodes of a text with marks: emphasis, code and links. */
export function inline(text, depth = 0) {
  if (depth > DEEPEST || !plain(text)) return depth > DEEPEST ? [text] : marked(text, depth);
  return [text];
}

/** Whether a text has no marks, so that it is one text node. */
export const plain = (text) => text.search(MARKS) < 0;

function marked(text, depth) {
  const nodes = [];
  let written = ""; // text since the last element
  let place = 0;
  MARKS.lastIndex = 0;
  for (let mark = MARKS.exec(text); mark; mark = MARKS.exec(text)) {
    written += text.slice(place, mark.index);
    const [length, node] = spanAt(text, mark.index, depth);
    if (typeof node === "string") written += node;
    else {
      nodes.push(written, node);
      written = "";
    }
    place = MARKS.lastIndex = mark.index + length;
  }
  return [...nodes, written + text.slice(place)].filter((node) => node !== "");
}

function spanAt(text, place, depth) {
  const { lastIndex } = MARKS; // what is inside is read with it, too
  for (const [pattern, make] of SPANS) {
    pattern.lastIndex = place;
    const found = pattern.exec(text);
    if (found) {
      const node = make(found, depth);
      MARKS.lastIndex = lastIndex;
      return Array.isArray(node) ? node : [found[0].length, node];
    }
  }
  return [1, text[place]];
}

/** A link, or its text with its address where that is not one of the web. */
function link(url, text, depth) {
  if (!safe(url)) return `${text} (${url})`;
  return h("a", { href: url, rel: "noopener noreferrer nofollow", target: "_blank", title: url }, inline(text || url, depth >= DEEPEST ? depth + 1 : DEEPEST));
}

/** An address that stands in the text, without the signs that end its sentence. */
function address(url) {
  const whole = url.replace(/[.,;:!?)\]}*_~]+$/, "");
  return [whole.length, link(whole, whole, DEEPEST)];
}

function safe(url) {
  try {
    return PROTOCOLS.has(new URL(url).protocol);
  } catch {
    return false;
  }
}
