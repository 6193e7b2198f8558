export function ClusterView(_: { item: string }) {
  return <h2>Cluster</h2>;
}
