import { ExplanationOf } from "../../parts/explanation/explanation";
import { Link, route } from "../../parts/routing";
import { RequestList } from "./request_list";
import "./requests.css";

/** The latest requests, or how one of them was served. `item` is the id of one. */
export function RequestsView({ item }: { item: string }) {
  if (!item) return <RequestList />;
  const filters = Object.fromEntries(route.value.query);
  return (
    <>
      <p>
        <Link to="requests" query={filters}>
          ← All requests
        </Link>
      </p>
      <h2 class="requests-id">Request {item}</h2>
      <ExplanationOf id={item} />
    </>
  );
}
