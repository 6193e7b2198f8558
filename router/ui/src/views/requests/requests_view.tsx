export function RequestsView(_: { item: string }) {
  return <h2>Requests</h2>;
}
