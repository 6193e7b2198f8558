export function PlaygroundView(_: { item: string }) {
  return <h2>Playground</h2>;
}
