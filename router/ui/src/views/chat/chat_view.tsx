export function ChatView(_: { item: string }) {
  return <h2>Chat</h2>;
}
