/** Shows a text that grows: Markdown, of which only the blocks that changed are made again. */

import { h } from "./dom.js";
import { LONGEST, blocksOf, nodeOf, plain } from "./markdown.js";

/** An element whose `update(text)` changes only the blocks that are no longer the same. */
export class Prose {
  #blocks = [];
  #text = "";
  #from = 0; // where the last block begins: what stands before it does not change while the text grows

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

  #put(index, block) {
    const before = this.#blocks[index];
    if (before && before.kind === block.kind && before.text === block.text) return;
    if (before && before.kind === block.kind && grown(before, block)) {
      before.text = block.text;
      return;
    }
    const node = nodeOf(block);
    if (before) before.node.replaceWith(node);
    else this.node.append(node);
    this.#blocks[index] = { kind: block.kind, text: block.text, node };
  }
}

/** Add what is new to the one text node of code, or of a paragraph without marks: a selection in it stays. */
function grown({ kind, text, node }, block) {
  const bare = kind === "code" || (kind === "text" && (plain(block.text) || text.length > LONGEST));
  if (!bare || !block.text.startsWith(text)) return false;
  const place = kind === "code" ? node.firstChild : node;
  const words = place.firstChild;
  if (!words || place.childNodes.length !== 1 || words.nodeType !== Node.TEXT_NODE) return false;
  words.appendData(block.text.slice(text.length));
  return true;
}
