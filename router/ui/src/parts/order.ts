const NAMES = new Intl.Collator(undefined, { numeric: true });

/** In the order of their names, numbers in them as numbers: `decode-2` is before `decode-10`. */
export function byName<T extends { name: string }>(items: Iterable<T>): T[] {
  return [...items].sort((a, b) => NAMES.compare(a.name, b.name));
}
