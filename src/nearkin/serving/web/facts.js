// What the page knows about the index: its contents and its corrections.

import { call } from "./api.js";

export const facts = { about: null, corrections: new Map() };

export async function refresh() {
  facts.about = await call("index");
  await refreshCorrections();
}

export async function refreshCorrections() {
  facts.corrections = new Map((await call("corrections")).map((correction) => [correction.id, correction]));
  dispatchEvent(new Event("nearkin:corrections"));
}

export const canWrite = () => !facts.about.read_only;

/** A file's name and folder, which together tell files apart. */
export const shortPath = (path) => (path ? path.split(/[\\/]/).slice(-2).join("/") : "");
export const fileName = (path) => (path ? path.split(/[\\/]/).pop() : "");
