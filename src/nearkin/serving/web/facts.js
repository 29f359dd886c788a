// What the page knows of the index: what it holds, and what people have corrected.

import { call } from "./api.js";

export const facts = { about: null, corrections: new Map() };

export async function refresh() {
  facts.about = await call("index");
  await refreshCorrections();
}

export async function refreshCorrections() {
  const told = await call("corrections");
  facts.corrections = new Map((told.corrections ?? told).map((one) => [one.id, one]));
  dispatchEvent(new Event("nearkin:corrections"));
}

export const canWrite = () => !facts.about.read_only;

/** The label of an item as people see it now: `{label, was, unsure}`. */
export function labelOf(item) {
  const correction = facts.corrections.get(item.id);
  if (!correction) return { label: item.label, was: null, unsure: false };
  return { label: correction.label, was: correction.was ?? item.label, unsure: correction.label === null };
}

export const nameOf = (item) => {
  const { label, was, unsure } = labelOf(item);
  return unsure ? `not ${was ?? "this"}` : label ?? "no label";
};

/** A file's name and its folder, which is what tells two of them apart. */
export const shortPath = (path) => (path ? path.split(/[\\/]/).slice(-2).join("/") : "");
export const fileName = (path) => (path ? path.split(/[\\/]/).pop() : "");
