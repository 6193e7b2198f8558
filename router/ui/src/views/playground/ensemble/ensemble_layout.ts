/** A picture of an ensemble: steps in layers from left to right, so that each tensor flows to the right. */
import { type Model, stepsOf } from "../models";

export type NodeKind = "input" | "step" | "output";

export interface GraphNode {
  id: string;
  kind: NodeKind;
  label: string;
  /** The number of the step, from 0; -1 for inputs and outputs of the ensemble. */
  step: number;
}

export interface GraphEdge {
  from: string;
  to: string;
  tensor: string;
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface Point {
  x: number;
  y: number;
}

export interface PlacedNode extends GraphNode, Point {
  width: number;
  height: number;
}

export interface PlacedEdge extends GraphEdge {
  path: string;
  label: Point;
}

export interface Layout {
  nodes: PlacedNode[];
  edges: PlacedEdge[];
  width: number;
  height: number;
}

const GAP = 104; // between layers: room for the names of tensors
const ROW = 76;
const MARGIN = 12;
const CHARACTER = 7.6;

export function graphOf({ metadata, config }: Model): Graph {
  const steps = stepsOf(config);
  const producers = new Map<string, string>();
  const nodes: GraphNode[] = [];
  for (const { name } of metadata.inputs) {
    nodes.push({ id: `input ${name}`, kind: "input", label: name, step: -1 });
    producers.set(name, `input ${name}`);
  }
  steps.forEach((step, index) => {
    nodes.push({ id: `step ${index}`, kind: "step", label: step.model_name, step: index });
    for (const tensor of Object.values(step.output_map)) producers.set(tensor, `step ${index}`);
  });
  const edges: GraphEdge[] = [];
  const connect = (tensor: string, to: string) => {
    const from = producers.get(tensor);
    if (from && !edges.some((edge) => edge.from === from && edge.to === to && edge.tensor === tensor)) {
      edges.push({ from, to, tensor });
    }
  };
  steps.forEach((step, index) => {
    for (const tensor of Object.values(step.input_map)) connect(tensor, `step ${index}`);
  });
  for (const { name } of metadata.outputs) {
    nodes.push({ id: `output ${name}`, kind: "output", label: name, step: -1 });
    connect(name, `output ${name}`);
  }
  return { nodes, edges };
}

/** The layer of each node: one behind the last of those that it reads from. */
export function layersOf(graph: Graph): Map<string, number> {
  const layers = new Map(graph.nodes.map((node) => [node.id, 0]));
  for (let pass = 0; pass < graph.nodes.length; pass++) {
    let isChanged = false;
    for (const { from, to } of graph.edges) {
      const behind = (layers.get(from) ?? 0) + 1;
      if (behind <= (layers.get(to) ?? 0) || behind >= graph.nodes.length) continue;
      layers.set(to, behind);
      isChanged = true;
    }
    if (!isChanged) break;
  }
  const last = Math.max(0, ...layers.values());
  for (const node of graph.nodes) if (node.kind === "output") layers.set(node.id, last);
  for (const node of graph.nodes) {
    const readers = graph.edges.filter((edge) => edge.from === node.id).map((edge) => layers.get(edge.to) ?? 0);
    if (node.kind === "input" && readers.length) layers.set(node.id, Math.max(0, Math.min(...readers) - 1));
  }
  return layers;
}

/** A node, or the place where an edge passes through a layer. */
interface Spot {
  id: string;
  node: GraphNode | null;
  y: number;
}

export function layoutOf(graph: Graph): Layout {
  const layers = layersOf(graph);
  const columns = columnsOf(graph, layers);
  const chains = graph.edges.map((edge) => chainOf(edge, layers));
  const neighbours = neighboursOf(chains);
  for (let sweep = 0; sweep < 6; sweep++) order(columns, neighbours, sweep % 2 === 0);
  const rows = Math.max(1, ...columns.map((column) => column.length));
  for (const column of columns) {
    column.forEach((spot, index) => {
      spot.y = MARGIN + (index + (rows - column.length) / 2 + 0.5) * ROW;
    });
  }
  return placed(graph, columns, chains, rows);
}

function columnsOf(graph: Graph, layers: Map<string, number>): Spot[][] {
  const columns: Spot[][] = [];
  const add = (layer: number, id: string, node: GraphNode | null) => {
    while (columns.length <= layer) columns.push([]);
    columns[layer]?.push({ id, node, y: 0 });
  };
  for (const node of graph.nodes) add(layers.get(node.id) ?? 0, node.id, node);
  for (const edge of graph.edges) {
    for (const id of chainOf(edge, layers).slice(1, -1)) add(Number(id.split("@")[1]), id, null);
  }
  return columns;
}

/** The spots that an edge passes: its ends, and one in each layer between them. */
function chainOf(edge: GraphEdge, layers: Map<string, number>): string[] {
  const chain = [edge.from];
  for (let layer = (layers.get(edge.from) ?? 0) + 1; layer < (layers.get(edge.to) ?? 0); layer++) {
    chain.push(`${edge.from} ${edge.tensor} ${edge.to}@${layer}`);
  }
  return [...chain, edge.to];
}

interface Neighbours {
  before: Map<string, string[]>;
  behind: Map<string, string[]>;
}

function neighboursOf(chains: readonly string[][]): Neighbours {
  const before = new Map<string, string[]>();
  const behind = new Map<string, string[]>();
  for (const chain of chains) {
    chain.slice(1).forEach((id, index) => {
      const previous = chain[index] ?? "";
      before.set(id, [...(before.get(id) ?? []), previous]);
      behind.set(previous, [...(behind.get(previous) ?? []), id]);
    });
  }
  return { before, behind };
}

/** Sorts each layer by the mean place of what its spots are connected with, which removes most crossings. */
function order(columns: Spot[][], neighbours: Neighbours, isForward: boolean): void {
  const places = new Map<string, number>();
  const note = (column: Spot[]) => {
    column.forEach((spot, index) => {
      places.set(spot.id, index - (column.length - 1) / 2);
    });
  };
  for (const column of columns) note(column);
  const map = isForward ? neighbours.before : neighbours.behind;
  for (const column of isForward ? columns : [...columns].reverse()) {
    const mean = (spot: Spot) => {
      const ids = map.get(spot.id);
      if (!ids?.length) return places.get(spot.id) ?? 0;
      return ids.reduce((sum, id) => sum + (places.get(id) ?? 0), 0) / ids.length;
    };
    column.sort((one, other) => mean(one) - mean(other));
    note(column);
  }
}

function widthOf(node: GraphNode): number {
  return Math.max(node.kind === "step" ? 96 : 56, node.label.length * CHARACTER + 28);
}

function placed(graph: Graph, columns: Spot[][], chains: string[][], rows: number): Layout {
  const nodes = new Map<string, PlacedNode>();
  const points = new Map<string, { left: Point; right: Point }>();
  let x = MARGIN;
  for (const column of columns) {
    const width = Math.max(40, ...column.map((spot) => (spot.node ? widthOf(spot.node) : 0)));
    for (const { id, node, y } of column) {
      const own = node ? widthOf(node) : width;
      const left = x + (width - own) / 2;
      points.set(id, { left: { x: left, y }, right: { x: left + own, y } });
      if (node) nodes.set(id, { ...node, x: left, y, width: own, height: node.kind === "step" ? 52 : 32 });
    }
    x += width + GAP;
  }
  const edges = graph.edges.map((edge, index) => drawn(edge, chains[index] ?? [], points));
  return { nodes: [...nodes.values()], edges, width: x - GAP + MARGIN, height: rows * ROW + 2 * MARGIN };
}

function drawn(edge: GraphEdge, chain: string[], points: Map<string, { left: Point; right: Point }>): PlacedEdge {
  const spots = chain.map((id) => points.get(id)).filter((spot) => spot !== undefined);
  let path = "";
  let label: Point = { x: 0, y: 0 };
  spots.forEach((spot, index) => {
    const previous = spots[index - 1];
    if (!previous) {
      path = `M ${spot.right.x} ${spot.right.y}`;
      return;
    }
    const from = previous.right;
    const to = spot.left;
    const middle = (from.x + to.x) / 2;
    path += ` C ${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
    if (index < spots.length - 1) path += ` L ${spot.right.x} ${spot.right.y}`;
    if (index === 1) label = { x: middle, y: (from.y + to.y) / 2 - 6 };
  });
  return { ...edge, path, label };
}
