import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// Relative addresses, so that the page works under any path prefix. Names without hashes of contents would be kept by
// browsers beyond an update; the server lets them keep what has one.
export default defineConfig({
  base: "./",
  plugins: [preact()],
  build: { outDir: "../api/ui/assets", emptyOutDir: true, assetsInlineLimit: 0, modulePreload: { polyfill: false } },
});
