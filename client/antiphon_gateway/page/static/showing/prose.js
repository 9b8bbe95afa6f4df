/** Shows a text that grows: paragraphs and fenced code, as elements whose content is text. */

import { h } from "./dom.js";

/** An element whose `update(text)` changes only the blocks that are no longer the same. */
export class Prose {
  #blocks = [];
  #text = "";
  #from = 0; // where the last paragraph begins: what stands before it does not change while the text grows

  constructor(name = "prose") {
    this.node = h("div", { class: name });
  }

  update(text) {
    if (text === this.#text) return;
    const grows = text.startsWith(this.#text) && this.#blocks.length > 0;
    const kept = grows ? this.#blocks.length - 1 : 0;
    const found = blocksOf(grows ? text.slice(this.#from) : text, grows ? this.#from : 0);
    found.forEach((block, index) => this.#put(kept + index, block));
    for (const block of this.#blocks.splice(kept + found.length)) block.node.remove();
    this.#from = found.at(-1)?.from ?? 0;
    this.#text = text;
  }

  #put(index, { code, text }) {
    const before = this.#blocks[index];
    if (before && before.code === code) {
      if (text.startsWith(before.words.data)) before.words.appendData(text.slice(before.words.length));
      else before.words.data = text;
      return;
    }
    const words = document.createTextNode(text);
    const node = code ? h("pre", { tabindex: "0" }, h("code", {}, words)) : h("p", {}, words);
    if (before) before.node.replaceWith(node);
    else this.node.append(node);
    this.#blocks[index] = { node, words, code };
  }
}

function blocksOf(text, from) {
  const found = [];
  let block = null;
  let fence = "";
  let place = from;
  for (const line of text.split("\n")) {
    const marks = /^\s*(`{3,}|~{3,})/.exec(line)?.[1];
    if (fence ? marks && marks[0] === fence[0] && marks.length >= fence.length && line.trim() === marks : false) {
      fence = "";
      block = null;
    } else if (!fence && marks) {
      fence = marks;
      found.push((block = { code: true, lines: [], from: place }));
    } else if (fence) {
      block.lines.push(line);
    } else if (line.trim() === "") {
      block = null;
    } else {
      if (!block) found.push((block = { code: false, lines: [], from: place }));
      block.lines.push(line);
    }
    place += line.length + 1;
  }
  return found.map(({ code, lines, from: begin }) => ({ code, text: lines.join("\n"), from: begin }));
}
