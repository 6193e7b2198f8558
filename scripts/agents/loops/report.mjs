// As report.py: a line of JSON for each loop of a program, which gets the base URL of the API as its argument.
export const ONE = "What is the weather in Paris?";
export const TWO = "Compare Paris and Rome";
export const LETTER = "Write a long letter";

export const weather = (city) => `sunny in ${city}`;

export function saw({ asked, answer, city }) {
  const cities = city === "Rome" ? ["Paris", "Rome"] : ["Paris"];
  if (String([...asked].sort()) !== String(cities)) throw Error(`the tool was asked for ${asked}`);
  if (answer !== `It is sunny in ${city}.`) throw Error(`the answer is ${answer}`);
  return `${cities.map((city) => `get_weather(${city})`).join(", ")}; '${answer}'`;
}

export async function run(loops) {
  for (const [loop, ask] of Object.entries(loops)) {
    try {
      console.log(JSON.stringify({ loop, saw: await ask(process.argv[2]) }));
    } catch (error) {
      console.error(error);
      console.log(JSON.stringify({ loop, failed: `${error.name}: ${error.message}` }));
    }
  }
}
