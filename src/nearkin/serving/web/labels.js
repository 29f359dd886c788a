// Labels of nested folders: their parts, the tree that they form, and which of them are ticked.

import { h } from "./dom.js";
import { facts } from "./facts.js";

/** The last part of a label and the parts above it: "Fruit/Citrus/Lemon" is ["Lemon", "Fruit/Citrus"]. */
export function splitLabel(label) {
  const at = label.lastIndexOf("/");
  return at > 0 && at < label.length - 1 ? [label.slice(at + 1), label.slice(0, at)] : [label, ""];
}

export const shortLabel = (label) => splitLabel(label)[0];

/** The parts above a label's last part, in small print; null if there are none. */
export function above(label, tag = "small") {
  const parts = label === null ? "" : splitLabel(label)[1];
  return parts ? h(tag, { class: "above" }, parts) : null;
}

/** The label of an item with its correction: `{label, was, unsure}`. */
export function labelOf(item) {
  const correction = facts.corrections.get(item.id);
  if (!correction) return { label: item.label, was: null, unsure: false };
  return { label: correction.label, was: correction.was ?? item.label, unsure: correction.label === null };
}

/** A short name for an item: the last part of its label. */
export const nameOf = (item) => {
  const { label, was, unsure } = labelOf(item);
  if (unsure) return was === null ? "not this" : `not ${shortLabel(was)}`;
  return label === null ? "no label" : shortLabel(label);
};

/** A typed text is a label of the index, or the last part of exactly one label; otherwise it is a new label. */
export function resolve(text) {
  const labels = facts.about.labels.map(({ label }) => label);
  const same = labels.filter((label) => shortLabel(label) === text);
  return !labels.includes(text) && same.length === 1 ? same[0] : text;
}

/** Nodes `{name, pick, items, children}`, the largest first; `pick` is a label, or for a branch its path and "/". */
export function labelTree() {
  const root = branch("", "");
  for (const { label, items } of facts.about.labels) {
    const parts = label.split("/").every(Boolean) ? label.split("/") : [label];
    let node = root;
    for (const [depth, name] of parts.slice(0, -1).entries()) {
      if (!node.below.has(name)) node.below.set(name, branch(name, `${parts.slice(0, depth + 1).join("/")}/`));
      node = node.below.get(name);
      node.items += items;
    }
    node.children.push({ name: parts.at(-1), pick: label, items, children: [] });
  }
  return settle(root).children;
}

const branch = (name, pick) => ({ name, pick, items: 0, children: [], below: new Map() });

function settle(node) {
  for (const child of node.below.values()) {
    // A folder may have both photos and subfolders.
    const same = node.children.findIndex(({ pick }) => `${pick}/` === child.pick);
    if (same >= 0) {
      const [label] = node.children.splice(same, 1);
      child.children.push({ ...label, name: `${label.name} itself` });
      child.items += label.items;
    }
    node.children.push(settle(child));
  }
  node.children.sort((a, b) => b.items - a.items || a.name.localeCompare(b.name));
  return node;
}

export const leaves = (node) => (node.children.length ? node.children.flatMap(leaves) : [node.pick]);

/** The labels that picks stand for: "Fruit/" is Fruit and all below it. */
export function pickedLabels(picks) {
  const branches = picks.filter((pick) => pick.endsWith("/"));
  const below = facts.about.labels.map(({ label }) => label).filter((label) => branches.some((pick) => `${label}/`.startsWith(pick)));
  return [...new Set([...below, ...picks.filter((pick) => !pick.endsWith("/"))])];
}

/** The picks after ticking or unticking labels; a branch with all labels ticked is one pick. */
export function withTicked(picks, labels, ticked) {
  const set = new Set(pickedLabels(picks));
  for (const label of labels) set[ticked ? "add" : "delete"](label);
  const shortest = (nodes) => nodes.flatMap((node) => {
    const all = leaves(node);
    if (all.every((label) => set.has(label)) && (all.length > 1 || !node.children.length)) {
      all.forEach((label) => set.delete(label));
      return [node.pick];
    }
    return shortest(node.children);
  });
  return [...shortest(labelTree()), ...set];
}
