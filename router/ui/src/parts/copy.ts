/** Puts a text on the clipboard. Returns whether that was possible. */
export async function isCopied(text: string): Promise<boolean> {
  try {
    if (!navigator.clipboard) return isCopiedFromField(text);
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // the text is there to be selected
  }
}

/** The way for pages that came over plain HTTP from another host: to those, browsers give no `navigator.clipboard`. */
function isCopiedFromField(text: string): boolean {
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (before instanceof HTMLElement) before.focus();
  return copied;
}
