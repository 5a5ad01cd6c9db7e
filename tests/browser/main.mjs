// main.mjs BINARY FOLDER [PICTURES]: drives the dashboard of the gateway in a real Chromium.

import { mkdir, stat } from "node:fs/promises";
import { CHECKS } from "./checks.mjs";
import { ADMIN, World, stop } from "./world.mjs";

const [binary, folder, pictures] = process.argv.slice(2);

/** The largest picture, in bytes. */
const LARGEST = 300_000;

const world = new World();
await world.start(binary, folder);
world.gateway = await world.serve("keyed", true);

world.pictures = pictures;
world.shot = async (page, name, options = {}) => {
  if (!pictures) return;
  await mkdir(pictures, { recursive: true });
  const path = `${pictures}/dashboard-${name}.png`;
  await page.screenshot({ path, animations: "disabled", ...options });
  const { size } = await stat(path);
  if (size > LARGEST) throw new Error(`${path} has ${size} bytes, more than ${LARGEST}`);
};
world.shots = async () => {
  if (!pictures) return;
  for (const [name, colorScheme, width, height] of [
    ["light", "light", 1440, 1480],
    ["dark", "dark", 1440, 1480],
    ["narrow", "light", 380, 1600],
  ]) {
    const page = await world.page({ viewport: { width, height }, colorScheme });
    await page.goto(`${world.gateway.url}/dashboard`);
    await page.getByLabel("Admin key").fill(ADMIN);
    await page.keyboard.press("Enter");
    await page.locator(".charts figure").nth(5).waitFor();
    await page.waitForTimeout(1_500);
    await world.shot(page, name);
    await page.own.close();
  }
};
world.page1 = await world.page();

let wrong = 0;
for (const [name, check] of CHECKS) {
  const began = Date.now();
  try {
    await check(world);
    console.log(`ok     ${name} (${((Date.now() - began) / 1_000).toFixed(1)} s)`);
  } catch (error) {
    wrong += 1;
    console.log(`FAILED ${name}: ${error.stack ?? error}`);
    await world.page1.screenshot({ path: `${folder}/failed-${wrong}.png` }).catch(() => undefined);
    // What follows goes on where this has ended.
    break;
  }
}
console.log(`${CHECKS.length} checks, ${wrong} failed`);
await world.stopLoad?.();
await world.browser.close();
await stop(world.gateway);
process.exit(wrong > 0 ? 1 : 0);
